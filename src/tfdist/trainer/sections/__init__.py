"""The sections of the config file: their keys, types and defaults.

Their docstrings and descriptions are the file's reference: they are in the JSON Schema, with which editors
complete and check the file. msgspec copies the lists and mappings that are defaults.
"""
