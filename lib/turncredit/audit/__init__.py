"""Ground-truth credit audit: what turns were worth, and how often methods blame the wrong one."""
