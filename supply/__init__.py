"""What the product is made of: a bill of materials, and a look for known vulnerabilities in it."""
