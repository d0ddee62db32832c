"""Features: extracted once, stored by content, brought in from elsewhere."""
