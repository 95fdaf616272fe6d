"""Fields of Avro values, found in the bytes without decoding a value into objects."""
