"""The small vision model beside the small text model: its pictures, network, training script and export."""
