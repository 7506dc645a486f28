"""The stream-processor runtime, and the scheduler and assembler that run on it."""
