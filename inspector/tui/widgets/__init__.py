"""Small widgets: lines of a report, a table with a cursor, the bars around them."""
