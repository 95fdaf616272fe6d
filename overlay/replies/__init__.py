"""What clients are told besides deliveries: answers and events, which topics answers may go to, and sending them."""
