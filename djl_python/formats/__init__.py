"""Forms that data has on the wire: JSON and its schemas, CSV, forms, and HTTP's rules about media types."""
