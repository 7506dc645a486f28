"""Sources of prompts: what reads them, how they are split, and how they reach the log.

May import the log's protocol and what lies below; a source needs neither. Start with
``prompt_sources.py``.
"""
