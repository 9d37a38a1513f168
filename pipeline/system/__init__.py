"""The process, the machine and the disk: signals, atomic files, disk errors, redaction, memory, failpoints."""
