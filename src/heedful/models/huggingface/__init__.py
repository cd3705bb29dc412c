"""Reading and writing of Hugging Face formats: configurations, parameters, checkpoints."""
