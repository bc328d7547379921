"""Run a cluster on Vertex AI and SageMaker."""
