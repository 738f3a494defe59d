"""Where jobs run: vClos, OCS-vClos and the strategies beside them, and the queue in front of them."""
