"""Write the report of a sweep: its exhibits, and one page that shows them."""
