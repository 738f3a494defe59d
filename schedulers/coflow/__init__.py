"""Coflow scheduling: the view that a policy gets, Parrot, the policies it is compared with, and shared
arithmetic."""
