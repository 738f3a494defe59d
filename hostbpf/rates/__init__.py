"""Rates per slot: schedules, and what makes flows keep to them."""
