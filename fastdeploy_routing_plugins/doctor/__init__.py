"""What ``fd-routing doctor`` looks at: one module for each subject, whose checks yield lines."""
