"""Start applications of others with Headgate attached to their sessions."""
