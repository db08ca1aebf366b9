"""Fewer messages between Python and the JVM than py4j sends."""
