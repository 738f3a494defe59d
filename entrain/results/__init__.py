"""Results of live experiments: values, files, tables, plots, and the page that compares them."""
