"""The producer as pure logic: which arrays a stream takes."""
