"""The consumer as pure logic: which announces to believe, what to map, what a frame is, what was lost."""
