"""A run on a Ray cluster that is there already: where its processes listen, its secrets, what it leaves on each node.

A run without `cluster.ray_address` starts a Ray of its own on loopback and uses nothing of this.
"""
