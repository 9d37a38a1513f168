"""Labels that people give a run's rows: samples to label, labels, and how far a judge agrees with them."""
