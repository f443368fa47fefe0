"""What the end-to-end tests stand on: labs, servers, clients. No test lives here."""
