"""The command line: `main` finds the verb, one file holds each verb."""
