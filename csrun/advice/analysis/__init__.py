"""What an input pipeline can deliver, from measurements of it: laws, recommendation, report."""
