"""What machines that watch many runs read: metrics and traces."""
