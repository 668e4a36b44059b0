"""Results of load generators -> requests as the client saw them."""
