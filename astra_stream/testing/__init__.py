"""What ships for tests: builders, contract suites, the processor driver."""
