"""What a model file says about itself, read before anything is loaded."""
