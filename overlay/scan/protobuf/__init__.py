"""Fields of Protobuf values, found in the bytes without decoding a message into objects."""
