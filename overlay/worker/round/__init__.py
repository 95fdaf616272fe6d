"""What a session does with what one round has fetched, and what it knows of positions while it does. No IO."""
