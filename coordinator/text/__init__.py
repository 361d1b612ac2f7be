"""Text in, tokens out, and back: values in, values out, no scheduling and no network."""
