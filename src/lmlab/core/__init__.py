"""The ground floor: errors, configs, units, resources, provenance, child processes, the environment."""
