"""The processing of one round of fetched data, and the position facts it needs. No IO."""
