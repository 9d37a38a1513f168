"""Pictures of rows: their columns, decoding within limits, and the sizes that models were trained with."""
