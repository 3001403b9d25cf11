"""What is told of a document: quality, embedding, topic, register, personal data. Steps: `quality_steps`."""
