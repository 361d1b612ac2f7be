"""gRPC plumbing both services share: errors, interceptors, servers, clients."""
