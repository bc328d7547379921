"""Write, check and load an exported model, and predict with it."""
