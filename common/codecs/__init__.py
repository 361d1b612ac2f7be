"""Pure functions between the values of `common` and their protobuf spelling."""
