"""What is learned: tasks, models, and who holds which samples."""
