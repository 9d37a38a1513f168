"""Prompts from columns: templates and chat messages."""
