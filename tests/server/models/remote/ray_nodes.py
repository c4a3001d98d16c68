"""A Ray cluster of this machine, in a process of its own: `python -m tests.server.models.remote.ray_nodes`.

Prints the cluster's address once its nodes are there. Then each line of stdin is a command, answered with a line:
`add NAME` and `kill NAME`.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

CPUS = 2


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = {}
    print(cluster.address, flush=True)
    for line in sys.stdin:
        command, name = line.split()
        if command == "add":
            nodes[name] = cluster.add_node(num_cpus=CPUS, node_name=name, wait=True)
        else:
            cluster.remove_node(nodes.pop(name), allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
