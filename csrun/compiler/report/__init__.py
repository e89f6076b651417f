"""What a compile tells its reader: compile_report.txt and compile_report.html, with floor plan."""
