"""What people look at: pictures, widgets and sessions."""
