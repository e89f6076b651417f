"""Local register of a site's jobs: requests, records, folders, queue, sessions, cancel."""
