"""Results of live experiments: values, files, tables, pictures, and the page that compares them."""
