//! Tests of file serving.
