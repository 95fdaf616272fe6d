"""Fields of JSON values, found in the bytes of a document without parsing it into objects."""
