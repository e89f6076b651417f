"""The local register of a site's jobs: requests, records, folders, the queue, sessions, cancel."""
