"""Pure data algorithms: records and arrays in, records and arrays out."""
